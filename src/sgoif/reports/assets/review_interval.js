// A 95% interval for a number of errors, from a few looks in every stratum: `inversion.py`, line by line.

const MISS = 0.025;
const FINENESS = 400;
const NEIGHBOURS = 2;
const [SEARCH_STEPS, CLOSE] = [20, 1e-3];
const FURTHEST = 1e9;
const TINY = 1e-300;
const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const clamped = (value, low, high) => Math.min(Math.max(value, low), high);

/** To the nearest whole number, a half to the even one. */
function halfToEven(value) {
  const below = Math.floor(value);
  return value - below < 0.5 || (value - below === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** Lower and upper end; a cell has size, looks, wrong (among the looks), least and most. */
function intervalOfErrors(cells, miss = MISS) {
  const told = cells.filter((cell) => cell.looks > 0 && cell.least < cell.most);
  const rest = cells.filter((cell) => !told.includes(cell));
  const [low, high] = [sumOf(rest.map((cell) => cell.least)), sumOf(rest.map((cell) => cell.most))];
  if (told.length === 0) return [low, high];
  const strata = withWeights(told);
  const meanLooks = sumOf(told.map((cell) => cell.looks)) / told.length;
  const limit = Math.sqrt(-Math.log(miss * (1 - 0.5 / meanLooks)));
  return [low + endOfInterval(strata, limit, 1), high + endOfInterval(strata, limit, -1)];
}

function withWeights(cells) {
  const total = sumOf(cells.map((cell) => cell.size));
  return cells.map((cell, place) => {
    const weight = cell.size / total;
    let [wrong, looks] = [cell.wrong, cell.looks];
    for (let distance = 1; distance <= NEIGHBOURS; distance++) {
      for (const other of [cells[place - distance], cells[place + distance]]) {
        if (other === undefined) continue;
        wrong += other.wrong / other.looks;
        looks += 1;
      }
    }
    const strength = (cell.looks * cell.size) / (cell.size - cell.looks);
    return { ...cell, weight, strength, share: wrong / looks, factor: Math.max(1, halfToEven((FINENESS * weight) / cell.looks)) };
  });
}

function endOfInterval(strata, limit, side) {
  const furthest = sumOf(strata.map(({ least, most }) => (side > 0 ? least : most)));
  if (strata.every(({ wrong, looks }) => wrong === (side > 0 ? 0 : looks))) return furthest;
  const spread = Math.sqrt(sumOf(strata.map((s) => (s.weight ** 2 * s.share * (1 - s.share)) / s.strength)));
  const excess = (multiplier) => limit - excessOf(strata, multiplier, side);
  let [low, high] = [0, spread > 0 ? 2 / spread : sumOf(strata.map(({ strength }) => strength))];
  let [above, below] = [excess(0), excess(side * high)];
  while (below > 0 && high < FURTHEST) {
    [low, high, above] = [high, 2 * high, below];
    below = excess(side * high);
  }
  while (above <= 0 && low > -FURTHEST) { // what is known beside the looks contradicts them
    [low, high, below] = [3 * low - 2 * high, low, above];
    above = excess(side * low);
  }
  if (above <= 0 || below > 0) return furthest;
  let [end, kept] = [high, 0];
  for (let step = 0; step < SEARCH_STEPS; step++) {
    end = low + ((high - low) * above) / (above - below);
    const found = excess(side * end);
    if (Math.abs(found) < CLOSE) break;
    if (found > 0) [low, above, below] = [end, found, kept > 0 ? below / 2 : below];
    else [high, below, above] = [end, found, kept < 0 ? above / 2 : above];
    kept = found > 0 ? 1 : -1;
  }
  return sumOf(strata.map((stratum) => plausibleShare(stratum, side * end) * stratum.size));
}

function plausibleShare({ size, weight, strength, share, least, most }, multiplier) {
  const c = (multiplier * weight) / strength;
  const below = Math.abs(c) + 1 + Math.sqrt(Math.max((c + 1) ** 2 - 4 * c * share, 0));
  const found = multiplier >= 0 ? (2 * share) / below : 1 - (2 * (1 - share)) / below;
  return clamped(found, least / size, most / size);
}

/** √(−log P) for the p-value P of one multiplier. */
function excessOf(strata, multiplier, side) {
  const seen = strata.map(({ wrong, looks }) => (side > 0 ? looks - wrong : wrong));
  const reach = sumOf(strata.map(({ factor }, place) => factor * seen[place])) + 1;
  let chance = new Float64Array(reach);
  let next = new Float64Array(reach);
  chance[0] = 1;
  for (const stratum of strata) {
    const { size, looks, factor } = stratum;
    const share = plausibleShare(stratum, multiplier);
    const part = hypergeometric(size, size * (side > 0 ? 1 - share : share), looks);
    for (let at = 0; at < reach; at++) next[at] = part[0] * chance[at];
    for (let count = 1; count <= looks && count * factor < reach; count++) {
      const [shift, weight] = [count * factor, part[count]];
      for (let at = shift; at < reach; at++) next[at] += weight * chance[at - shift];
    }
    [chance, next] = [next, chance];
  }
  return Math.sqrt(-Math.log(clamped(sumOf(chance), TINY, 1)));
}

/** P(x = 0, 1, …) among the looks; the number of wrong ones need not be whole. */
function hypergeometric(size, wrong, looks) {
  const logs = new Float64Array(looks + 1);
  for (let x = 0; x < looks; x++) {
    const up = Math.max((wrong - x) * (looks - x), TINY);
    const down = Math.max((x + 1) * (size - wrong - looks + x + 1), TINY);
    logs[x + 1] = logs[x] + (Math.log(up) - Math.log(down));
  }
  const largest = logs.reduce((most, value) => Math.max(most, value), 0);
  const chance = logs.map((value) => Math.exp(value - largest));
  const total = sumOf(chance);
  return chance.map((value) => value / total);
}
