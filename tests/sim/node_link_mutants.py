"""Deliberate bugs in how nodes call each other."""

from __future__ import annotations

from .mutation import Mutant

LOSSES = ("link lost", "link answer lost", "link one-way")

NODE_LINK_MUTANTS = [
    Mutant(
        "a request has no id when it leaves",
        "backstay.engine.cluster.peers:Peers._forward",
        "request = repeatable(request, self._world.ids.ulid, self._origin)",
        "",
        links=True,
        often=LOSSES,
    ),
    Mutant(
        "a lost reply is taken for done",
        "backstay.engine.cluster.peers:Peers.deliver",
        "not isinstance(answer, _Unanswered)",
        "True",
        links=True,
        often=LOSSES,
    ),
    Mutant(
        "a send over a link is not waited for",
        "backstay.engine.core.deliveries:take",
        "await taken",
        "",
        links=True,
    ),
    Mutant(
        "what another node owns is carried out without looking",
        "backstay.engine.cluster.peers:Peers.misdirected",
        "None if partition is None else self.owner_of(partition)",
        "None",
        links=True,
        often=("storm",),
    ),
    Mutant(
        "a wait over a link ends with its first answer",
        "backstay.engine.cluster.peers:Peers._wait",
        "_is_settled(reply) or self._left(until) == 0",
        "True",
        links=True,
    ),
    Mutant(
        "sends over links do not wait for each other",
        "backstay.engine.core.outbox:Outbox._prepare",
        "await self.elsewhere(message.send)",
        "self._engine.world.spawn(self.elsewhere(message.send), 'send')",
        links=True,
        often=("link late",),
    ),
]
