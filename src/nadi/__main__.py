"""Entry point of `python -m nadi`, for machines without `nadi` on the path."""

from nadi.cli.app import main

main()
