"""A project of the user's own to start from: a method with its test, a data set, a sweep and a README."""

from dspreg.starter.create import create_project

__all__ = ["create_project"]
