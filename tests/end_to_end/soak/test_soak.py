"""A minute of the soak; soak.py runs it for longer."""

from soak import soak


def test_nothing_that_clients_do_harms_the_server():
    counts, _ = soak(seconds=60, seed=1)
    for what in ("left", "aborted", "slow", "wrong 400", "/generate 200", "/generate 503", "retracted for lack of pages"):
        assert counts[what] > 0, what  # it was a soak
