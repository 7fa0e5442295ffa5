"""A later target for a swarm: signed by its key, passed on by every member, never taken back.

It travels as text in the shared state: each member that has verified it says it, too, so that it
outlives the node that brought it. A member that holds an older one takes the one whose target lies
further; an old one that comes back changes nothing.
"""

from __future__ import annotations

import base64
import binascii

from swarmnode.errors import MalformedMessage
from swarmnode.protocol.identity import Identity, verify
from swarmnode.wire.packing import decode_record, encode_record
from swarmnode.wire.recipe import Extension

_DOMAIN = "extension/1"
_SIGNATURE_BYTES = 64


def sign_extension(extension: Extension, swarm_identity: Identity) -> str:
    """Return the text of an extension, signed with the swarm's own key."""
    body = encode_record(extension)
    return base64.b64encode(swarm_identity.sign(_DOMAIN, body) + body).decode()


def open_extension(text: str, swarm_key: bytes) -> Extension:
    """Verify and read an extension.

    Raises:
        AuthenticationFailed: the swarm's key has not signed it.
        MalformedMessage: it is no extension.
    """
    try:
        octets = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage(f"expected an extension as base64, got {text[:20]!r}") from error
    signature, body = octets[:_SIGNATURE_BYTES], octets[_SIGNATURE_BYTES:]
    if len(signature) < _SIGNATURE_BYTES:
        raise MalformedMessage(f"expected an extension, got {len(octets)} bytes")
    verify(swarm_key, _DOMAIN, body, signature, what="extension")
    return decode_record(body, Extension)
