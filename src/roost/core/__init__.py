"""The words that every room speaks: ids, envelopes, requests, events, outcomes, plans, errors.

Takes nothing but the standard library and msgspec. Gives frozen values and tables.
"""
