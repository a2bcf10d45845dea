"""Removable: tables, statistics and plots made from run directories, without a GPU or Lightning."""
