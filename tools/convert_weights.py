"""Run the command of :mod:`mmrla.commands.convert_weights`."""
from mmrla.commands.convert_weights import main

if __name__ == '__main__':
    main()
