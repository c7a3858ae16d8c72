import numpy as np

from .evaluation import Tally, walk


def test_a_round_brings_its_right_drafts_and_one_token_more():
    wanted = np.array([False, True, True, True, True, True, True, False])
    never, always = np.zeros((3, 8), bool), np.ones((3, 8), bool)
    assert walk(never, wanted) == (6, 6)
    assert walk(always, wanted) == (6, 2)  # 3 drafts and one; then 2 drafts, with which the text ends
    first_only = never.copy()
    first_only[0] = True
    assert walk(first_only, wanted) == (6, 3)
    assert walk(always, np.array([True] * 4 + [False] * 2 + [True] * 2)) == (6, 2)


def test_deeper_drafts_count_where_their_chain_could_begin():
    tally = Tally(3)
    tally.add(np.ones((3, 5), bool), np.ones(5, bool))
    assert tally.able.tolist() == [5, 4, 3] and tally.hits() == [1, 1, 1]
