"""Run the command of :mod:`mmrla.commands.compare_seeds`."""
from mmrla.commands.compare_seeds import main

if __name__ == '__main__':
    main()
