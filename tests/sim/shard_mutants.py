"""Deliberate bugs in how nodes share the work."""

from __future__ import annotations

from .mutation import Mutant

SHARD_MUTANTS = [
    # waiting
    Mutant(
        "who waits at another process is not looked after",
        "backstay.engine.core.waiters:Waiters._with_news",
        "entry[0] in noticed or not (trusts and self._owns(entry[0]))",
        "entry[0] in noticed or self._owns(entry[0])",
    ),
    # handing over
    Mutant(
        "owned is cleared after the row",
        "backstay.engine.cluster.shards:Shards._give",
        "self._lose(shards)",
        "",
        also=(
            "backstay.engine.cluster.shards:Shards._give",
            "row = self._rows[shard]",
            "self._lose([shard])\nrow = self._rows[shard]",
        ),
        often=("storm",),
    ),
    Mutant(
        "what was decided is not waited for",
        "backstay.engine.cluster.shards:Shards._give",
        "await engine.commits.settle()",
        "",
        often=("storm", "slow commit"),
    ),
    Mutant(
        "no lease gets an end on leaving",
        "backstay.engine.cluster.guest_leases:GuestLeases.give_ends",
        "renewals.append(self._renew(task))",
        "",
        often=("storm",),
    ),
    Mutant(
        "the ends of leases are not waited for",
        "backstay.engine.cluster.guest_leases:GuestLeases.give_ends",
        "all([await renewal for renewal in renewals])",
        "True",
        often=("storm", "slow commit"),
        far=True,
    ),
    Mutant(
        "a shard that is being handed over is taken back",
        "backstay.engine.cluster.shards:Shards._follow",
        "mine - self._giving",
        "mine",
        often=("storm", "store down"),
        far=True,
    ),
    # claiming
    Mutant(
        "nothing is read of a shard that was gained",
        "backstay.engine.recovery:Recovery._gained",
        "self._unread |= frozenset(shards)",
        "",
    ),
    Mutant(
        "the floor of keys is left out",
        "backstay.engine.cluster.shards:Shards._gain",
        "self._world.ids.after(max(self._rows[shard].clock for shard in gained))",
        "",
        often=("storm", "clock"),
    ),
    Mutant(
        "everybody may have everything",
        "backstay.engine.cluster.fair_share:share_of",
        "-(-shards * facts.weight // (facts.weight + weight))",
        "shards",
    ),
    Mutant(
        "nobody is given what is too much",
        "backstay.engine.cluster.shards:Shards._look",
        "await self._balance(owned - share)",
        "",
    ),
    # the dead, and those who were taken for dead
    Mutant(
        "the dead keep their shards",
        "backstay.engine.cluster.shards:Shards._depose_the_dead",
        "without or silent",
        "False",
    ),
    Mutant(
        "who is silent is never dead",
        "backstay.engine.cluster.shards:Shards._depose_the_dead",
        "without or silent",
        "without",
        often=("no evidence",),
    ),
    Mutant(
        "who is fenced and writes nothing never begins again",
        "backstay.engine.cluster.shards:Shards._mark",
        "self._engine.on_unavailable(Deposed('another process declared this one dead'))",
        "",
        often=("falsely dead",),
    ),
    Mutant(
        "who begins again keeps its shards",
        "backstay.engine.recovery:Recovery._probe",
        "await self._shards.check()",
        "",
        often=("falsely dead",),
    ),
    Mutant(
        "what was read before an outage is decided in it",
        "backstay.engine.core.loading:Loading._fold",
        "error = self._engine.down",
        "pass",
        far=True,
        often=("falsely dead", "read error"),
    ),
    # looks that are late
    Mutant(
        "an older look outvotes what is known",
        "backstay.engine.cluster.shards:Shards._follow",
        "enumerate(self._rows)",
        "enumerate(view.shards)",
        often=("stale map", "storm"),
    ),
    # beside the owner
    Mutant(
        "what is reported is done again by the next owner",
        "backstay.engine.cluster.guest_leases:GuestLeases.give_ends",
        "task.id in held or not engine.is_at_rest(task.workflow)",
        "task.id in held",
        far=True,
        often=("conflict", "falsely dead", "late report"),
    ),
    Mutant(
        "what is stolen has no end",
        "backstay.engine.core.turn_tasks:TurnTasks._steal",
        "replace(taker, until=until)",
        "taker",
    ),
    Mutant(
        "code beside the owner has no end",
        "backstay.engine.tasks.inline:InlineCode._activated",
        "None if self._engine.owns(entry.instance.key) else self._world.now() + LEASE",
        "None",
        often=("moved to thread",),
    ),
    Mutant(
        "notices of others are taken",
        "backstay.engine.cluster.notices:Notices._take",
        "engine.store.notices(shards=engine.shards())",
        "engine.store.notices()",
    ),
    Mutant(
        "sends of others are delivered",
        "backstay.engine.core.outbox:Outbox.dispatch",
        "send.key in self._under_way or self._stopped or not self._engine.owns(send.sender)",
        "send.key in self._under_way or self._stopped",
    ),
    # a database that has forgotten
    Mutant(
        "owners of before are not noticed",
        "backstay.store.forgetting:went_back",
        "any(now.term < before.term for before, now in zip(known, shards, strict=False))",
        "False",
        often=("amnesia",),
    ),
    Mutant(
        "what was claimed since the last look is not known",
        "backstay.store.forgetting:moved",
        "rows.get(shard, row)",
        "row",
        often=("amnesia", "storm"),
    ),
    # draining
    Mutant(
        "who drains has its share",
        "backstay.engine.cluster.fair_share:share_of",
        "0 if weight else shards",
        "-(-shards * facts.weight // (facts.weight + weight))",
        often=("node drain",),
    ),
    Mutant(
        "who drains is given more",
        "backstay.engine.cluster.fair_share:weight_of",
        "node.is_alive and (not node.facts.draining)",
        "node.is_alive",
        often=("node drain",),
    ),
    Mutant(
        "who drains never works again",
        "backstay.engine.cluster.draining:Draining.read",
        "self._set(me in wishes)",
        "self._set(self.asked or me in wishes)",
        often=("node drain",),
    ),
    # levels
    Mutant(
        "an older node is admitted",
        "backstay.engine.cluster.shards:Shards._refuse_a_higher_level",
        "levels and min(levels) > mine",
        "False",
        often=("older level",),
    ),
    Mutant(
        "who joins is proof for who joins with it",
        "backstay.engine.cluster.shards:Shards._refuse_a_higher_level",
        "not node.facts.joining or node.facts.level > mine",
        "True",
        often=("older level",),
    ),
    Mutant(
        "the level is raised before all have it",
        "backstay.engine.cluster.shards:Shards.check",
        "min((node.facts.level for node in view.nodes), default=self._facts().level)",
        "max((node.facts.level for node in view.nodes), default=self._facts().level)",
        often=("older level",),
    ),
    # without links
    Mutant(
        "who waits beside the owner hears nothing",
        "backstay.engine.core.waiters:Waiters.check_all",
        "self._spawn(self._check_all())",
        "",
        far=True,
    ),
    Mutant(
        "a paused run is read again and again",
        "backstay.engine.cluster.stealing:Stealing._take",
        "key in self._paused",
        "False",
    ),
    Mutant(
        "a paused run is read in each sweep",
        "backstay.engine.core.sweep:Sweep._reconciled",
        "self._paused.add(key, entry.instance.last_decision)",
        "",
    ),
    Mutant(
        "code is shown what another has overwritten",
        "backstay.engine.tasks.inline:_joined",
        "any(e.checksum != committed[e.sequence - 1].checksum for e in mine if e.sequence <= last)",
        "False",
    ),
    Mutant(
        "nobody takes the tasks of others",
        "backstay.engine.cluster.stealing:Stealing.start",
        "self._job.start(EVERY)",
        "",
    ),
]
