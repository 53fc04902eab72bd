"""Settings of a verb: those of its properties file, and over them what the command line says."""

import argparse
from dataclasses import replace

from lakelog.replication.config import Config, load_properties
from lakelog.replication.errors import InvalidConfigurationException


def properties_file(text: str) -> str:
    """A type of argparse: the path of a properties file that can be read and has valid settings."""
    try:
        load_properties(text)
    except InvalidConfigurationException as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def settings(path: str | None) -> Config:
    """The settings in a properties file, or the defaults without one."""
    return load_properties(path) if path else Config()


def broker_settings(path: str | None, broker_id: int | None, rack: str | None) -> Config:
    """The settings of a broker. Raises InvalidConfigurationException if nothing, or two things, say which one it is."""
    config = settings(path)
    chosen = config.broker_id if broker_id is None else broker_id
    if chosen < 0:
        raise InvalidConfigurationException("which broker is this? Give --broker-id, or broker.id in --command-config")
    if config.broker_id not in (-1, chosen):
        raise InvalidConfigurationException(f"--broker-id is {chosen}, but {path} has broker.id={config.broker_id}")
    return replace(config, broker_id=chosen, broker_rack=rack or config.broker_rack)
