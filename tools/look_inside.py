"""Run the command of :mod:`mmrla.commands.look_inside`."""
from mmrla.commands.look_inside import main

if __name__ == '__main__':
    main()
