"""Why a deploy is refused. Each error names what differs and what to do; the code that runs stays as it is."""

from __future__ import annotations

from cmdlog.operator_error import OperatorError


class BundleRefused(OperatorError):
    """The code cannot run here, or would not replay."""

    kind = "bundle_refused"
    hint = "nothing changed; `cmdlog check APP` finds most of it before a deploy"


class TablesRefused(OperatorError):
    """The declared tables do not follow on those of the states."""

    kind = "bundle_refused"
    hint = "nothing changed; write a migration, or go back to the former declaration"


class DeployNeedsMigration(OperatorError):
    """The tables change in a way that pauses calls, and that was not asked for."""

    kind = "migration_needed"
    hint = "`cmdlog deploy APP --migrate` does it; calls are refused meanwhile, and clients retry"


class MigrationRefused(OperatorError):
    """A partition cannot be changed, so none is."""

    kind = "migration_failed"
    hint = (
        "nothing changed; repair the migration, or the rows with the code that runs: `cmdlog check APP --from DIR` shows rows "
        "that a migration cannot take"
    )


class SiteLost(MigrationRefused):
    """The site of a partition ended while it tried the change."""

    kind = "migration_failed"
    hint = "nothing changed; look at the server's log for why the site ended, then deploy again"


class DeployUnderWay(OperatorError):
    """Another deploy has not ended."""

    kind = "deploy_under_way"
    hint = "wait for its end, then look at the version in `cmdlog status`"


class NoFormerCode(OperatorError):
    """There is no version to go back to."""

    kind = "no_former_code"
    hint = "deploy the former code from its sources: `cmdlog deploy APP --url URL`"


class SwitchUnfinished(OperatorError):
    """The log has the code, and it does not run yet."""

    kind = "unknown_outcome"
    hint = "deploy the same code again: it continues where this deploy ended; a restart serves the new code"
