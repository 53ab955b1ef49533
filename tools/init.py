"""Run the command of :mod:`mmrla.commands.init`."""
from mmrla.commands.init import main

if __name__ == '__main__':
    main()
