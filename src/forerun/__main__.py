"""`python -m forerun` is the command `forerun`."""

from forerun.cli import main

if __name__ == "__main__":
    main()
