"""`nadi passwd FILE USER`: add, change or remove a user in a users file."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.printing import reporting_errors


def passwd(
    file: Annotated[Path, typer.Argument(help="Users file; created if it doesn't exist.")],
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="Permission, such as 'prn::/scope:home/*,READ_UPDATE'; may be repeated. Replaces all permissions."
        ),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
    ] = False,
    keep_password: Annotated[bool, typer.Option("--keep-password", help="Change only the permissions.")] = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Let the user log in only by a client certificate.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the user.")] = False,
) -> None:
    """Add, change or remove a user in a users file. A running server picks up the change."""
    from nadi.access.permissions import Permissions
    from nadi.access.users import NO_PASSWORD, User, check_user_name, hash_password, read_users, write_users

    with reporting_errors(OSError):
        users = read_users(file) if file.exists() else {}
        old = users.get(check_user_name(user))
        if (remove or keep_password) and old is None:
            raise typer.BadParameter(f"user {user} doesn't exist in {file}")
        if remove:
            del users[user]
        else:
            granted = Permissions.parse(grant) if grant is not None else old.permissions if old else Permissions()
            if keep_password and old:
                password_hash = old.password_hash
            elif no_password:
                password_hash = NO_PASSWORD
            else:
                ask = partial(typer.prompt, "Password", hide_input=True, confirmation_prompt=True)
                password = sys.stdin.readline().rstrip("\r\n") if password_stdin else ask()
                if not password:
                    raise typer.BadParameter("the password must not be empty")
                password_hash = hash_password(password)
            users[user] = User(user, password_hash, granted)
        write_users(file, users)
