"""Exchanges in pairs, the atomic ones: whom an intent is offered to, and one transfer at a time.

Owns the one exchange in flight and the stream that its payload takes. The state machine is
``protocol/gossip/exchange.py``.
"""
