"""The data sets of the comparison, each read from the files and folders its publisher made.

    data = load("cifar10", "ROOT")              # images, labels, names of the classes
    test = load("cifar10", "ROOT", train=False)

| name            | what is expected below ROOT                                                                       |
|-----------------|---------------------------------------------------------------------------------------------------|
| cifar10         | cifar-10-batches-bin/ or cifar-10-batches-py/                                                     |
| cifar100        | cifar-100-binary/ or cifar-100-python/; the fine classes                                          |
| mnist           | MNIST/raw/, mnist/, raw/ or ROOT itself with train-images-idx3-ubyte, plain or .gz, and so on     |
| fashion-mnist   | FashionMNIST/raw/, fashion-mnist/, raw/ or ROOT itself with the same names of files               |
| webvision       | WebVision 1.0: info/train_filelist_google.txt, ..._flickr.txt, val_filelist.txt, and the images   |
| webvision-mini  | the same, the first 50 classes of the Google part alone                                           |
| clothing1m      | images/ and the lists noisy_train_key_list.txt, noisy_label_kv.txt, clean_label_kv.txt and so on  |
| imagenet        | train/CLASS/ and val/CLASS/                                                                       |
| digits          | nothing: scikit-learn carries them                                                                |

WebVision, Clothing1M and ImageNet are read once, file by file, and kept as an array on disk (see `listed`).
"""

from sgoif_bench.labels.datasets.labelled import LabelledData
from sgoif_bench.labels.datasets.loading import NAMES, load

__all__ = ["NAMES", "LabelledData", "load"]
