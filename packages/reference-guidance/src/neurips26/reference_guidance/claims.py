"""Headline claims."""
