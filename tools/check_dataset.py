"""Run the command of :mod:`mmrla.commands.check_dataset`."""
from mmrla.commands.check_dataset import main

if __name__ == '__main__':
    main()
