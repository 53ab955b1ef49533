"""Run the command of :mod:`mmrla.commands.train`."""
from mmrla.commands.train import main

if __name__ == '__main__':
    main()
