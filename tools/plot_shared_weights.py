"""Run the command of :mod:`mmrla.commands.plot_shared_weights`."""
from mmrla.commands.plot_shared_weights import main

if __name__ == '__main__':
    main()
