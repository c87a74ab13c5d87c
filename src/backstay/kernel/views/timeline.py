"""The timeline of a run: its events as lines of words, in order, and the steps that are still open.

The words come from the features. A test fails if an event type has none.
"""

from __future__ import annotations

from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature_list import FEATURES
from backstay.kernel.words import Phrase, Story, Words

WORDS: dict[type[Event], Words] = {kind: words for feature in FEATURES for kind, words in feature.words.items()}


def tell(story: Story, entry: Recorded) -> Phrase:
    """The phrase of the next event of a run. It also brings the story up to date."""
    story.turn_to(entry)
    return WORDS[type(entry.event)].phrase(story, entry.event)
