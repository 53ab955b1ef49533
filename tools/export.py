"""Run the command of :mod:`mmrla.commands.export`."""
from mmrla.commands.export import main

if __name__ == '__main__':
    main()
