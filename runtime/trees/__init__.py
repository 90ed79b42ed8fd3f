"""Tree policies: one file each, named after the command-line name; ``create(rng=None) -> TreePolicy``.

Without ``rng`` a node's children are *chosen*: the draft's likeliest tokens, and ``TokenTree.draft`` says so by giving
each of them probability 1 (several certain guesses). With ``rng`` they are *drawn* from the draft's distribution, one
after another and each only once, and ``TokenTree.draft`` holds that distribution. Either way the tree tells the truth,
which is all that a verifier needs; `docs/speculation.md` has the argument.
"""
