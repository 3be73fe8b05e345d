"""`python -m nadi` is the command `nadi`, where it isn't on the path."""

from nadi.cli.app import main

main()
