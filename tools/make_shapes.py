"""Run the command of :mod:`mmrla.commands.make_shapes`."""
from mmrla.commands.make_shapes import main

if __name__ == '__main__':
    main()
