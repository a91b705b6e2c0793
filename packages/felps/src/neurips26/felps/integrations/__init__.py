"""Adapters that put a policy into other engines."""
