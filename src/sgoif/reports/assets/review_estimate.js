// What the decisions say about the whole list: `estimates.py`, `recalibration.py` and `report.py`, line by line.

const REVIEWED = 0.95;
const FEWEST = 3;
const NEXT = 100;
const WORTHWHILE = 0.05;
const ENOUGH = 10;
const CERTAIN = 0.002;
const PRIOR_PRECISION = [1.5 ** -2, 0.5 ** -2];
const [NEWTON_STEPS, EXACT] = [25, 1e-7];
const [UNKNOWN, RIGHT, WRONG] = [-1, 0, 1];

/** The log odds of every probability; those that are not known get the mean. */
function logOdds(probability) {
  const known = probability.filter((p) => !Number.isNaN(p));
  const mean = known.length ? known.reduce((sum, p) => sum + p, 0) / known.length : 0.5;
  return Float64Array.from(probability, (given) => {
    const p = clamped(Number.isNaN(given) ? mean : given, CERTAIN, 1 - CERTAIN);
    return Math.log(p / (1 - p));
  });
}

/** a and b of logit p' = a + b logit p, fitted to the looks with a prior around 0 and 1. */
function fitted(score, looks, verdict) {
  const scores = looks.map((position) => score[position]);
  const wrong = looks.map((position) => verdict[position]);
  const softplus = (z) => Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));
  const loss = (a, b) => scores.reduce((sum, x, i) => sum + softplus(a + b * x) - wrong[i] * (a + b * x), 0)
    + 0.5 * (PRIOR_PRECISION[0] * a ** 2 + PRIOR_PRECISION[1] * (b - 1) ** 2);
  let [a, b] = [0, 1];
  for (let step = 0; step < NEWTON_STEPS; step++) {
    let [slopeA, slopeB] = [PRIOR_PRECISION[0] * a, PRIOR_PRECISION[1] * (b - 1)];
    let [aa, ab, bb] = [PRIOR_PRECISION[0], 0, PRIOR_PRECISION[1]];
    scores.forEach((x, i) => {
      const p = 1 / (1 + Math.exp(-(a + b * x)));
      slopeA += p - wrong[i];
      slopeB += (p - wrong[i]) * x;
      aa += p * (1 - p);
      ab += p * (1 - p) * x;
      bb += p * (1 - p) * x * x;
    });
    const area = aa * bb - ab * ab;
    let [byA, byB] = [(bb * slopeA - ab * slopeB) / area, (aa * slopeB - ab * slopeA) / area];
    const before = loss(a, b);
    const far = () => Math.max(Math.abs(byA), Math.abs(byB)) > EXACT;
    while (far() && loss(a - byA, b - byB) > before) [byA, byB] = [byA / 2, byB / 2];
    [a, b] = [a - byA, b - byB];
    if (!far()) break;
  }
  return [a, Math.max(b, 0)];
}

/** `verdict` has, for every position of the list, UNKNOWN, RIGHT or WRONG; `score` the log odds. */
function reviewEstimate(plan, orders, verdict, skipped, score) {
  const { size, ends } = plan;
  const looks = [];
  for (const position of drawn(orders, skipped)) {
    if (verdict[position] === UNKNOWN) break;
    looks.push(position);
  }
  const [a, b] = fitted(score, looks, verdict);
  const [wrongBefore, rightBefore] = [new Uint32Array(size + 1), new Uint32Array(size + 1)];
  const expectedBefore = new Float64Array(size + 1);
  let reviewed = 0;
  for (let i = 0; i < size; i++) {
    const p = verdict[i] === UNKNOWN ? 1 / (1 + Math.exp(-(a + b * score[i]))) : verdict[i];
    wrongBefore[i + 1] = wrongBefore[i] + (verdict[i] === WRONG);
    rightBefore[i + 1] = rightBefore[i] + (verdict[i] === RIGHT);
    expectedBefore[i + 1] = expectedBefore[i] + p;
    if (verdict[i] !== UNKNOWN && wrongBefore[i + 1] + rightBefore[i + 1] >= REVIEWED * (i + 1)) reviewed = i + 1;
  }
  const sorted = Uint32Array.from(looks).sort();
  const among = (start, stop) => sorted.filter((position) => position >= start && position < stop);

  const blocks = [];
  ends.forEach((end, stratum) => {
    const first = stratum ? ends[stratum - 1] : 0;
    let cut = clamped(reviewed, first, end);
    if (first < cut && cut < end && among(cut, end).length < FEWEST) cut = first;
    if (first < cut) blocks.push([first, cut, false]);
    if (cut < end) blocks.push([cut, end, true]);
  });

  const cellOf = (start, stop, sampled) => {
    const [length, least] = [stop - start, wrongBefore[stop] - wrongBefore[start]];
    const most = length - (rightBefore[stop] - rightBefore[start]);
    const seen = sampled ? among(start, stop) : [];
    const wrong = seen.reduce((sum, position) => sum + verdict[position], 0);
    const mean = (expectedBefore[stop] - expectedBefore[start]) / length;
    const estimate = clamped((length * (wrong + mean)) / (seen.length + 1), least, most);
    return { estimate, size: length, looks: seen.length, wrong, least, most };
  };

  /** Estimate, low and high for the number of errors from one position up to another. */
  const errors = (start, stop, miss) => {
    const cells = blocks.map(([first, end, sampled]) => [Math.max(first, start), Math.min(end, stop), sampled])
      .filter(([first, end]) => first < end).map((block) => cellOf(...block));
    if (cells.length === 0) return [0, 0, 0];
    const [low, high] = intervalOfErrors(cells, miss);
    return [clamped(sumOf(cells.map(({ estimate }) => estimate)), low, high), low, high];
  };

  const [found, total] = [wrongBefore[size], errors(0, size)];
  const [best, few, many] = total.map((value) => (value ? Math.min(found / value, 1) : 1));
  return {
    size, looks, reviewed, found, total, errors,
    decided: found + rightBefore[size],
    share: total.map((value) => value / size),
    left: total.map((value) => Math.max(value - found, 0)),
    recall: [best, many, few],
    recallOfFirst(count) {
      const [above, below] = [errors(0, count, MISS / 2), errors(count, size, MISS / 2)];
      return [[0, 0], [1, 2], [2, 1]].map(([i, j]) => (above[i] + below[j] ? above[i] / (above[i] + below[j]) : 1));
    },
    next(count) {
      const stop = Math.min(reviewed + count, size);
      const known = wrongBefore[stop] - wrongBefore[reviewed];
      return errors(reviewed, stop).map((value) => Math.max(value - known, 0));
    },
    stop() {
      for (let first = Math.max(size - NEXT, 0); first >= 0; first--) {
        const ahead = expectedBefore[Math.min(first + NEXT, size)] - expectedBefore[first];
        if (ahead >= WORTHWHILE * NEXT) return Math.min(first + NEXT / 2, size);
      }
      return 0;
    },
  };
}

/** What a review has shown so far, in plain English. */
function reviewSentence(found) {
  const { size, looks } = found;
  if (found.decided === size) return `All ${grouped(size)} labels are decided. Wrong: ${grouped(found.found)}.`;
  if (looks.length < Math.min(ENOUGH, size)) {
    return `${ENOUGH - looks.length} more of the drawn examples, and it can be said how many labels are wrong.`;
  }
  const said = [`About ${roundedPercent(found.share[0])}% of ${grouped(size)} labels are wrong (${percentSpan(found.share)}),`
    + ` from ${grouped(looks.length)} random looks.`];
  const rest = `${aboutCount(found.left[1], Math.floor)} to ${aboutCount(found.left[2], Math.ceil)}`;
  said.push(found.found ? `Found: ${grouped(found.found)}, ${percentSpan(found.recall)} of all; left: ${rest}.`
    : `Found: none yet; left: ${rest}.`);
  if (found.reviewed < size) {
    const count = Math.min(NEXT, size - found.reviewed);
    said.push(`In the next ${grouped(count)} of the list: about ${aboutCount(found.next(count)[0])} more.`);
  }
  const stop = found.stop();
  said.push(stop > found.reviewed ? `The first ${grouped(stop)} hold ${percentSpan(found.recallOfFirst(stop))} of all wrong labels.`
    : "Below, fewer than 1 in 20 are wrong: this is a place to stop.");
  return said.join(" ");
}

function percentSpan([, low, high]) {
  const [least, most] = [roundedPercent(low, Math.floor), roundedPercent(high, Math.ceil)];
  return least === most ? `${least}%` : `${least} to ${most}%`;
}

/** In percent, with one digit below ten; ends of intervals are rounded outwards. */
function roundedPercent(share, round = halfToEven) {
  const digits = share < 0.0995 ? 1 : 0;
  return roundedTo(100 * share, digits, round).toFixed(digits).replace(/\.0$/, "");
}

/** With two digits that count. */
function aboutCount(count, round = halfToEven) {
  return grouped(roundedTo(count, count < 100 ? 0 : 2 - String(Math.floor(count)).length, round));
}

function roundedTo(value, digits, round) {
  return round(Number((value * 10 ** digits).toFixed(6))) / 10 ** digits;
}
