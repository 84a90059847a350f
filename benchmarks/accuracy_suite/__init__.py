"""Stored runs of recipes, and the pages that are made from them."""
