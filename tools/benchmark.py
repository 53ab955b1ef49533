"""Run the command of :mod:`mmrla.commands.benchmark`."""
from mmrla.commands.benchmark import main

if __name__ == '__main__':
    main()
