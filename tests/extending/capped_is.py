"""An estimator in a package of one's own: per-decision IS whose running product is capped at 5."""

import reweigh as rw

capped = rw.Table(
    "capped",
    keys=("t",),
    columns={
        "c": "least(running_product, 5)",
        "c2": "least(running_product, 5) * least(running_product, 5)",
        "cy": "least(running_product, 5) * reward",
    },
)


class CappedProducts(rw.TableWeights):
    """c = min(ρ_{0:t}, 5), the product of the ratios up to the step, at most 5."""

    tables = (capped,)
    multiplies = whole_episodes = True
    limit_group = "products"
    formula = "v̂ = Σₜ γᵗ Σᵢ min(ρ₀…ρₜ, 5) rₜ / n"

    def description(self, recipe):
        return "step-wise importance sampling, the products capped at 5"

    def per_step(self, sums):
        table = sums.tables["capped"]
        return sums.discount**table.t * table.cy / sums.n

    def effective_sizes(self, sums):
        table = sums.tables["capped"]
        return table.c**2 / table.c2


def capped_is():
    return rw.Recipe("capped-is", CappedProducts())
