"""Run the command of :mod:`mmrla.commands.test`."""
from mmrla.commands.test import main

if __name__ == '__main__':
    main()
