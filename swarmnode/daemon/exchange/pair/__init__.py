"""Atomic exchanges in pairs: the peers that an intent is offered to, and one transfer at a time.

Owns the exchanges in flight and the streams that their payloads take. The state machine is
``protocol/gossip/exchange.py``.
"""
