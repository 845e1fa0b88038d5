"""The users of a Slurm cluster as the text files that libnss-extrausers and sshd read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.core.errors import InvalidInput

# Users and groups of Debian's base system, Slurm and sshd: the system's own entry would be found first.
_WORDS = """
    root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats _apt nobody nogroup adm
    tty disk kmem dialout fax voice cdrom floppy tape sudo audio dip operator src shadow utmp video sasl plugdev staff
    users input sgx kvm render clock crontab messagebus polkitd sshd _ssh ssh munge slurm slurmdbd systemd-journal
    systemd-network systemd-resolve systemd-timesync"""
_TAKEN = frozenset(_WORDS.split())
_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n\r]*)?")


@dataclass(frozen=True, slots=True)
class Account:
    """One user; ``gid`` None means a group of the user's own with the same number."""

    name: str
    uid: int
    gid: int | None = None
    ssh_keys: tuple[str, ...] = ()


def check(accounts: Sequence[Account]) -> None:
    """Raises InvalidInput with one sentence for users that cannot exist side by side."""
    names: set[str] = set()
    owners: dict[int, str] = {}
    for account in accounts:
        if account.name in _TAKEN:
            raise InvalidInput(f"user {account.name}: the system uses this name; choose another")
        if account.name in names:
            raise InvalidInput(f"user {account.name} is listed twice")
        if account.uid in owners:
            raise InvalidInput(f"users {owners[account.uid]} and {account.name} have the same uid {account.uid}")
        for key in account.ssh_keys:
            # Options such as command="..." are refused: a first word that is no key type would be one.
            if not _KEY.fullmatch(key.strip()):
                raise InvalidInput(
                    f"user {account.name}: an SSH key is one line `type base64 comment`, without options"
                )
        names.add(account.name)
        owners[account.uid] = account.name


def passwd(accounts: Sequence[Account]) -> str:
    """One line a user; ``*`` admits no password and is not what sshd takes for a locked account (``!``)."""
    return "".join(f"{a.name}:*:{a.uid}:{_gid(a)}:{a.name}:/home/{a.name}:/bin/bash\n" for a in accounts)


def group(accounts: Sequence[Account]) -> str:
    """One group for each number in use, named after its first user."""
    names: dict[int, str] = {}
    for account in sorted(accounts, key=lambda a: (a.uid != _gid(a), a.uid)):
        names.setdefault(_gid(account), account.name)
    return "".join(f"{name}:x:{gid}:\n" for gid, name in sorted(names.items()))


def authorized_keys(accounts: Sequence[Account]) -> str:
    """``user key`` lines, for the image's AuthorizedKeysCommand."""
    return "".join(f"{a.name} {key.strip()}\n" for a in accounts for key in a.ssh_keys)


def _gid(account: Account) -> int:
    return account.uid if account.gid is None else account.gid
