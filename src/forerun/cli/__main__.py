"""`python -m forerun.cli`, for where the `forerun` command is not on the path."""

from forerun.cli import main

main()
