from .arrays import Images as Images, images_of as images_of
from .files import cache_folder as cache_folder, data_folders as data_folders
from .image_sets import PARTS as PARTS, images as images
