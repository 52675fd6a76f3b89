"""Several machines that share their engines."""

from __future__ import annotations

from gateway.feature import Background, Extra, Feature

FEATURE = Feature(
    name="cluster",
    sections={"cluster": "gateway.features.cluster.settings:Cluster"},
    at_start=("cluster",),
    settle="gateway.features.cluster.settings:settle",
    commands={
        "cluster": (
            "gateway.features.cluster.commands.cluster:cluster",
            "Check what this machine lacks to join the cluster.",
        )
    },
    background=(Background("gateway.features.cluster.member:member", lambda config: "cluster" in config.sections),),
    migrations="gateway.features.cluster.migrations",
    offers={
        "engine_pool": "gateway.features.cluster.member:Pool",
        "key_file": "gateway.features.cluster.keys:SharedKeys",
    },
    extra=Extra("cluster", ("ray", "psycopg")),
)
