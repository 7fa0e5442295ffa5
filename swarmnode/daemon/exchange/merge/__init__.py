"""One merge of all members' whole models when somebody asks for it, in files beside training.

``finalize`` is the two sides of it, ``part`` a node's part, ``global_mean`` the exact
mean of one vector of each member.
"""
