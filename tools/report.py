"""Run the command of :mod:`mmrla.commands.report`."""
from mmrla.commands.report import main

if __name__ == '__main__':
    main()
