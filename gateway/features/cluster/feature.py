"""Several machines that share their engines."""

from __future__ import annotations

from gateway.feature import Background, Extra, Feature

FEATURE = Feature(
    name="cluster",
    sections={"cluster": "gateway.config.values:Cluster"},
    commands={
        "cluster": (
            "gateway.features.cluster.commands.cluster:cluster",
            "Check what this machine lacks to join the cluster.",
        )
    },
    background=(Background("gateway.features.cluster.member:member", lambda config: config.cluster is not None),),
    migrations="gateway.features.cluster.migrations",
    offers={
        "engine_pool": "gateway.features.cluster.member:Pool",
        "key_file": "gateway.features.cluster.keys:SharedKeys",
    },
    extra=Extra("cluster", ("ray", "psycopg")),
)
