"""Limits of clusters and of their logs; imported from `nadi.limits`, as all others."""

from __future__ import annotations

_MIB = 1024 * 1024

# --- a log that is a chain of objects ------------------------------------------------------------
CHAIN_TRY_S = 5.0  # until a call to the store of a log counts as one without an answer, and a second more
CHAIN_TRY_BYTES_PER_S = _MIB  # for so many bytes; it is tried again, with pauses
CHAIN_LONGEST_PAUSE_S = 1.0  # no longer than this
CHAIN_READ_AHEAD = 32  # objects, while the end of a log is looked for
CHAIN_AHEAD_BYTES = 32 * _MIB  # of frames that wait for the state they change
CHAIN_BRAKE = 24  # numbers ahead of a live owner: there a seal stops it that loses the race at the end
CHAIN_SLOW_S = 0.010  # a frame that took longer is followed by a pause
CHAIN_PAUSE_PART, CHAIN_PAUSE_S = 1 / 16, 0.005  # of so much of the time that it took, and no longer
CHAIN_CLOSE_S = 5.0  # to wait for a frame under way when a log is closed
CHAIN_OBJECT_MOST_BYTES = 22 * _MIB  # the largest: a frame (4 MiB), one request more (17 MiB), and their checksums
CHAIN_DELETED_AT_ONCE = 500  # names in one call

# --- records, membership and placement -----------------------------------------------------------
CLUSTER_CALL_S = 2.0  # until a question to the registry counts as one without an answer
CLUSTER_RECORD_TRIES = 8  # of a change to a container's record, which takes 1 s altogether if the store answers
CLUSTER_RECORDS_AT_ONCE = 32  # read at one time
CLUSTER_BEAT_S = 1.0  # how often a server says that it is there, and looks who else is
CLUSTER_LEASE_S = 2.0  # so long after it began to say so, at most, it answers reads; two beats at least
CLUSTER_DEAD_S = 3.0  # one that has said nothing for this long is dead: a quarter more than the lease, for clocks drift
CLUSTER_CALLS_AT_ONCE = 8  # of such questions about single servers
CLUSTER_VALUE_S = 5.0  # how often what a server says of itself is read; that it says anything is seen with each beat
CLUSTER_FORGET_S = 24 * 3600.0  # a dead server's entry is deleted after this,
CLUSTER_DEAD_KEPT = 100  # or if there are more of them: a server that can't stay up leaves one with each start
CLUSTER_LEAVE_TRIES = 3  # to remove its own entry; if none succeeds, the others wait for its death
CLUSTER_SETTLE_S = 3.0  # without a change of servers, before anybody claims containers that never had an owner
CLUSTER_STABLE_S = 30.0  # the same, before a container is moved for balance
CLUSTER_TURN_S = 1.0  # for each of those that come first in line for a container without an owner
CLUSTER_ARRIVAL_S = 10.0  # a container that was released to a server may be claimed by others after this
CLUSTER_TAKES_AT_ONCE = 8  # containers that a server opens at one time, each with frames that wait
CLUSTER_FAILED_TAKES = 3  # in a row, before a server gives a container on that it can't open
CLUSTER_RETAKE_S = 5.0  # the longest pause before the next try of that server
CLUSTER_CLOSE_LOOK_S = 0.05  # how often the record of a container that is about to change hands is read
CLUSTER_ORPHAN_LOOK_S = 0.1  # how often all records are looked at while somebody is to take those of a dead server
CLUSTER_ANNOUNCE_S = 1.5  # from saying so to doing it: until everybody has seen it
CLUSTER_HAND_OVER_S = 60.0  # for all that comes before a container is closed to be handed over
CLUSTER_START_S = 60.0  # for a new server to see a controller in its cluster
CLUSTER_DRAIN_S = 25.0  # for a server to stop, whatever is broken: orchestrators kill after 30 s
CLUSTER_LEAVE_S = 8.0  # of these, for closing what it couldn't hand over before,
CLUSTER_BREAK_S = 6.0  # and for what is left once it doesn't wait for the store any more
CLUSTER_STOP_S = 28.0  # then the process ends, even if something keeps it
CLUSTER_WHERE_S = 10.0  # that an answer waits which says where a segment is, while that isn't settled,
CLUSTER_WHERE_AT_ONCE = 500  # such answers, half of all calls that may be in flight; more are refused,
CLUSTER_WHERE_LOOK_S = 0.05  # and how often it is looked up meanwhile
CLUSTER_RING_S = 0.5  # for a store to take a connection, before its address is told

# --- looking and cleaning, for an operator -------------------------------------------------------
CLUSTER_LOGS_AT_ONCE = 8  # containers whose objects are listed at one time
JANITOR_EACH_S = 24 * 3600.0  # from one cleaning to the next, in the server that has container 0
JANITOR_FIRST_S = 3600.0  # before the first: a server that can't stay up cleans nothing
JANITOR_OLDER_S = 24 * 3600.0  # what is younger stays, whatever names it
JANITOR_LEAST_OLDER_S = 3600.0  # and may be told to stay no shorter than this
JANITOR_PAUSE_S = 0.2  # after each page of a listing
JANITOR_DELETED_AT_ONCE = 500  # names in one call

# --- migrations ----------------------------------------------------------------------------------
MIGRATION_PAUSE_S = 60.0  # writers are held for so long at most, unless the command says otherwise,
MIGRATION_PAUSE_MAX_S = 3600.0  # and no longer than this
MIGRATION_REFRESH_S = 300.0  # for new snapshots of all containers
MIGRATION_PASSES = 10  # over what has changed, before writers are held whatever is left,
MIGRATION_LEFT_BYTES = 64 * _MIB  # or once a pass had no more to copy than this
MIGRATION_COPIES_AT_ONCE = 4  # chunks, each of them in memory
MIGRATION_ROWS = 10_000  # of a state, written in one transaction
MIGRATION_LATE_S = 10.0  # for the mark of a server that gave no answer
MIGRATION_TRIES = 5  # to read a snapshot while a server replaces it
MIGRATION_TURN_BEAT_S = 2.0  # how often one says in the store that it is under way: GCS takes one write a second
MIGRATION_TURN_DEAD_S = 10.0  # one that has said nothing for so long, by the clock of the next, has ended
