"""Integrations of Backstay in frameworks. Nothing of Backstay imports these modules."""
