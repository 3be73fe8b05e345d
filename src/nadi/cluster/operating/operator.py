"""What one server of a cluster tells an operator, and does for one: the logic behind `/v1/cluster`.

Whatever is asked for is begun, not waited for: whoever asked looks at the report to see how far it is.
"""

from __future__ import annotations

from nadi.cluster.keeper import Keeper
from nadi.cluster.operating.view import Seen, cluster_report, held
from nadi.cluster.records import RecordWatch
from nadi.cluster.servers.membership import Membership
from nadi.engines.identity import Cluster
from nadi.errors import ConflictError
from nadi.observe.cluster import ClusterReport, DrainReport
from nadi.segmentstore.store import SegmentStore


class Operator:
    """Of one server, the one of the id `me`."""

    def __init__(
        self,
        cluster: Cluster,
        me: str,
        membership: Membership,
        watch: RecordWatch,
        keeper: Keeper,
        store: SegmentStore,
    ) -> None:
        self._cluster, self._me = cluster, me
        self._membership, self._watch, self._keeper, self._store = membership, watch, keeper, store

    def report(self) -> ClusterReport:
        """The cluster as this server sees it; it knows how much a log holds only of its own containers."""
        peers = self._membership.members.values()
        members = {peer.id: (peer.member, peer.is_alive) for peer in peers if peer.member is not None}
        records = {number: self._watch.record(number) for number in range(self._cluster.containers)}
        log_bytes = {one.number: one.logged_bytes for one in self._store.containers if one.started}
        return cluster_report(self._cluster.cluster, self._me, Seen(members, records, log_bytes))

    def drain(self) -> DrainReport:
        """Begin to hand all containers over, for good; ConflictError if no other server takes any."""
        if not self._membership.has_takers():
            raise ConflictError(
                "no other server of the cluster takes containers: start one first, or stop this one, and whichever "
                "comes next takes them over"
            )
        self._membership.drain()
        self._keeper.wake()
        return self._progress()

    def rebalance(self) -> DrainReport:
        """Begin to hand over what other servers are to have, without waiting for a quiet time."""
        self._keeper.rebalance()
        return self._progress()

    def _progress(self) -> DrainReport:
        return DrainReport(self._me, held(self._me, self.report().containers))
