"""`nadi passwd FILE USER`: add a user to a users file, or change or remove one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nadi.cli.printing import errors_told


def passwd(
    file: Annotated[Path, typer.Argument(help="The users file; created if missing.")],
    user: Annotated[str, typer.Argument(help="The user's name.")],
    grant: Annotated[
        list[str] | None,
        typer.Option(
            help="What the user may do, such as 'prn::/scope:home/*,READ_UPDATE'; may be given several times. "
            "Replaces the user's current grants."
        ),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
    ] = False,
    keep_password: Annotated[bool, typer.Option("--keep-password", help="Change only the grants.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the user.")] = False,
) -> None:
    """Add or change a user in a users file; a running server picks up the change."""
    from nadi.access.permissions import Permissions
    from nadi.access.users import User, check_user_name, hash_password, read_users, write_users

    with errors_told(OSError):
        users = read_users(file) if file.exists() else {}
        old = users.get(check_user_name(user))
        if (remove or keep_password) and old is None:
            raise typer.BadParameter(f"{file} has no user {user}")
        if remove:
            del users[user]
        else:
            granted = Permissions.parse(grant) if grant is not None else old.permissions if old else Permissions()
            if keep_password and old:
                kept = old.password_hash
            else:
                ask = partial(typer.prompt, "Password", hide_input=True, confirmation_prompt=True)
                password = sys.stdin.readline().rstrip("\r\n") if password_stdin else ask()
                if not password:
                    raise typer.BadParameter("the password must not be empty")
                kept = hash_password(password)
            users[user] = User(user, kept, granted)
        write_users(file, users)
