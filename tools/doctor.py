"""Run the command of :mod:`mmrla.commands.doctor`."""
from mmrla.commands.doctor import main

if __name__ == '__main__':
    main()
