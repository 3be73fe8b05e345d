"""Keys that the servers of a cluster share."""

from __future__ import annotations

import pytest

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.cluster.proxy.active import ClusterKey
from nadi.errors import PermissionDeniedError

from .servers import SECRET


def test_a_delegation_token_of_one_server_is_good_at_another() -> None:
    issuing, checking = ClusterKey(SECRET).token_key(600), ClusterKey(SECRET).token_key(60)
    token = checking.check(issuing.issue("sc", "st", Permission.READ))
    assert token.permits("sc/st/0.#epoch.0", Act.READ)
    assert not token.permits("sc/st/0.#epoch.0", Act.WRITE)
    with pytest.raises(PermissionDeniedError):
        ClusterKey(bytes(32)).token_key(600).check(issuing.master())


def test_a_proof_is_of_its_peer_and_cluster() -> None:
    key = ClusterKey(SECRET)
    proof = key.proof("ipv4:10.0.0.7:1")
    assert key.proven(proof) == "ipv4:10.0.0.7:1"
    assert key.proven(proof.replace("10.0.0.7", "10.0.0.8")) is None
    for other in ("", " ", "x", "é é", proof[:-1]):
        assert key.proven(other) is None
    assert ClusterKey(bytes(32)).proven(proof) is None
