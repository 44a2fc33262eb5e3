"""Rules of kinds that are still spelled as tract spells them."""
