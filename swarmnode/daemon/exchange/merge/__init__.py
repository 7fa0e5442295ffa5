"""One merge of all members' whole models when somebody asks for it, in files beside training.

``finalize`` is whoever asks and whoever is asked, ``part`` a node's part, ``global_mean`` the exact
mean of one vector of each member.
"""
