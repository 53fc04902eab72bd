"""Settings of a verb: those of its properties file, and over them the options of the command line."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakelog.replication.config import Config, read_properties
from lakelog.replication.errors import InvalidConfigurationException
from lakelog.replication.properties import Setting, parse_properties


@dataclass(frozen=True, repr=False)
class PropertiesFile:
    """A properties file as it was read, once: a pipe such as `<(…)` has nothing left for a second reader.

    `given`: the settings in the file, which may hold credentials.
    """

    path: str
    config: Config
    given: Mapping[str, Setting]

    def __str__(self) -> str:
        return self.path


def properties_file(path: str) -> PropertiesFile | None:
    """A type of argparse: a properties file that can be read and has valid settings; None for an empty path."""
    if not path:
        return None
    try:
        text = read_properties(path)
        return PropertiesFile(path, Config.from_properties(text, path), parse_properties(text, path)[0])
    except InvalidConfigurationException as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def settings(file: PropertiesFile | None) -> Config:
    """The settings in a properties file, or the defaults without one."""
    return file.config if file else Config()


def given_settings(file: PropertiesFile | None) -> Mapping[str, Setting]:
    """The settings that a properties file has, without the defaults."""
    return file.given if file else {}


def broker_settings(file: PropertiesFile | None, broker_id: int | None, rack: str | None) -> Config:
    """The settings of a broker. Raises InvalidConfigurationException if nothing, or two things, say which one it is."""
    config = settings(file)
    chosen = config.broker_id if broker_id is None else broker_id
    if chosen < 0:
        raise InvalidConfigurationException("which broker is this? Give --broker-id, or broker.id in --command-config")
    if config.broker_id not in (-1, chosen):
        raise InvalidConfigurationException(f"--broker-id is {chosen}, but {file} has broker.id={config.broker_id}")
    return replace(config, broker_id=chosen, broker_rack=rack or config.broker_rack)
