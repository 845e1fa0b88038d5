"""Users as text files."""

from __future__ import annotations

import pytest

from everstep.core import slurm_accounts
from everstep.core.errors import InvalidInput
from everstep.core.slurm_accounts import Account

ADA = Account("ada", 2001, None, ("ssh-ed25519 AAAA ada@laptop", "ssh-rsa BBBB"))
BOB = Account("bob", 2002, 2001)


def test_files() -> None:
    accounts = [ADA, BOB]
    assert slurm_accounts.passwd(accounts) == (
        "ada:*:2001:2001:ada:/home/ada:/bin/bash\nbob:*:2002:2001:bob:/home/bob:/bin/bash\n"
    )
    assert slurm_accounts.group(accounts) == "ada:x:2001:\n"
    assert slurm_accounts.authorized_keys(accounts) == "ada ssh-ed25519 AAAA ada@laptop\nada ssh-rsa BBBB\n"


def test_a_group_is_named_after_the_user_with_that_number() -> None:
    assert slurm_accounts.group([BOB, ADA]) == "ada:x:2001:\n"


@pytest.mark.parametrize(
    ("accounts", "words"),
    [
        ([ADA, Account("ada", 2003)], "listed twice"),
        ([ADA, Account("eve", 2001)], "same uid 2001"),
        ([Account("slurm", 2001)], "the system uses this name"),
        ([Account("lp", 2001)], "the system uses this name"),
        ([Account("sudo", 2001)], "the system uses this name"),
        ([Account("eve", 2001, None, ('command="sh" ssh-rsa AAAA',))], "without options"),
        ([Account("eve", 2001, None, ("ssh-rsa AAAA\nada ssh-rsa BBBB",))], "one line"),
        ([Account("eve", 2001, None, ("",))], "one line"),
    ],
)
def test_refusals(accounts: list[Account], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        slurm_accounts.check(accounts)
